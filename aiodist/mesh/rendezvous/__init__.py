"""How ranks find each other: rank, size, a store they share, and each one's own address."""
