"""Validation: outputs of a definition compared with torch's, with error bounds."""
