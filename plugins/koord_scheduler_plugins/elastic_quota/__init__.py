"""ElasticQuota: trees of quotas that lend each other what they do not use."""
