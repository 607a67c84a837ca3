"""The checks of an audit, one file per family; each recomputes what it judges from table rows."""
