"""How sites agree on data without showing it, and a site's own samples in the agreed form."""
