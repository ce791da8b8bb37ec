"""Who is who, and what is allowed: certificates, the roster, kits, the authority, private files and a site's policy."""
