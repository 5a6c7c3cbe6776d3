"""One process on one device: the step that everything else is compared with.

No replicas and no communication. What a parallel scenario gains or loses is measured against this one: with N devices
the ideal is the time of ``single`` over N.
"""

from bench.seams import Scenario

SCENARIO = Scenario(summary="one process, one device, fp32: the yardstick", strategy="single")
