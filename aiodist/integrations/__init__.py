"""Ranks on the workers of other engines: `aiodist.integrations.ray`, `aiodist.integrations.dask`.

Each module imports its engine. Nothing else of aiodist imports these modules.
"""
