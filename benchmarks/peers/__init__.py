"""The same federated training in several frameworks, each in its own loop. `benchmarks.run_peers` compares them."""
