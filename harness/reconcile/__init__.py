"""The auditor: reads plan and evidence files only, and recomputes what they claim."""
