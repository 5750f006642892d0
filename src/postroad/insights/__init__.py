"""Results of the pipeline, as reports over HTTP, and the status of the pipeline."""
