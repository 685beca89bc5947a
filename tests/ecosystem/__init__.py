"""Programs that others wrote, from their packages; ``make test-ecosystem`` runs them."""
