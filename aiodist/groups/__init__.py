"""Process groups, the work they have in hand, and the world they belong to."""
