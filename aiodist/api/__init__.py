"""The async functions users call, by family, with torch's names."""
