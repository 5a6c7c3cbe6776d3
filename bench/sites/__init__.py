"""Where ranks run: from a job to the values that its ranks hand back."""
