"""From the tables of a run to the tables of a report: DataFrame to DataFrame, pure."""
