"""SNS through boto3, on a node that delivers."""
