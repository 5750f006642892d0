"""Every promise of Postroad, tried on the real engine. Folders mirror src/postroad."""
