"""Trials on many devices: one driver asks and tells, a worker for each device measures, and Ray connects them.

Only `cluster` imports Ray. A worker has the bench of one machine, and a trial's folder with
`request.json` and `outcome.json` stays the contract: it is made on the worker and its files come back by value.
"""
