"""`postroad demo`: three tenants with something to do, so that there is something to look at."""
