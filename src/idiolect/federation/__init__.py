"""A federation of sites that keep their data: the methods of the simulator between machines.

The server runs the round loop of ``idiolect.simulation`` with an engine that sends a method's message ``Down`` to each
site and gets its ``Up``. A site runs the same code for its one client that a simulation runs for many. Messages go over
HTTPS, and certificates say who is who.

``programs`` has the two programs, ``preview`` what a site would send, and below them are rooms, each of which imports
only from those further down:

    server, site, monitor     what the server does, what a site does, and what the operator sees
    secure_aggregation        sums of uploads under masks
    rounds, link              questions and checks of a round; the network
    data, trust               agreement on the data; keys, rosters, kits and policies
    messages, events          what travels, and what is said
"""
