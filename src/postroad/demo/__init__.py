"""`postroad demo`: generated traffic of three tenants, so that reports and lists have content."""
