"""How long many ranks of one host take to start, and what each of them costs."""
