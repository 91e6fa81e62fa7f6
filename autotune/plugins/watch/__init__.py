"""`watch`, `tune FOLDER`, `launch --apply` and `try`: a job is watched while it runs as ever, tuned as it was seen, run
tuned, and run both ways."""
