"""What a fork server imports ahead of trials.

No job imports it. Every callable is a model of the fake framework, so a job's model must not be looked at for that.
"""

import numpy as np  # noqa: F401
