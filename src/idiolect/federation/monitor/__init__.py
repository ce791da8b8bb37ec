"""What the operator of a server sees: an overview of sites, rounds and alarms, and the page that shows it."""
