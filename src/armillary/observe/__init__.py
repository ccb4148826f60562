"""What every head computes while the model runs: the tap, what it shows, and checks that it shows it rightly."""
