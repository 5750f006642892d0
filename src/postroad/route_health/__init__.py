"""Health of command routes: whether the queues behind them are drained."""
