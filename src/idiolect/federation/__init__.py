"""A federation of sites that keep their data: the methods of the simulator between machines.

The server runs the round loop of ``idiolect.simulation`` with an engine that sends a method's message ``Down`` to each
site and gets its ``Up``. A site runs the same code for its one client that a simulation runs for many. Messages go over
HTTPS, and certificates say who is who.
"""
