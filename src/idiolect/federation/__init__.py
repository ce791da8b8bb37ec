"""A federation of sites that keep their data: the methods of the simulator between machines, with Flower's transport.

The server runs the round loop of ``idiolect.simulation`` with an engine that sends a method's message ``Down`` to each
site and gets its ``Up``. A site runs the same code for its one client that a simulation runs for many. The package flwr
(the extra ``federation``) carries the messages: its link, its authentication of sites, its objects.
"""
