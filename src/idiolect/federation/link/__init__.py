"""How messages travel: the server's end over HTTPS, a site's end, the web server, and who may connect."""
