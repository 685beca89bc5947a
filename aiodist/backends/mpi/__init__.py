"""The backend "mpi": the collectives and messages of an MPI library, through mpi4py."""
