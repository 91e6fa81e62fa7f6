"""`watch`, and `tune FOLDER`: a job is watched while it runs as ever, and tuned as it was seen."""
