"""The parent of a trial: start the child, watch it, bring back its outcome, leave no process behind."""
