"""Alert rules of Prometheus and dashboards of Grafana, from one list in code: `make dashboards` writes them to deploy/."""
