"""Programs of PyTorch's ecosystem: each prints a line "result BACKEND FIGURES" at its end."""
