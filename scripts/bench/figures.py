"""The line that a benchmark prints for each figure, as `millrace bench --json` does; scripts/bench/record keeps it."""
import json
import statistics


def tell(bench, figure, unit, values):
    print(json.dumps({"bench": bench, "figure": figure, "unit": unit, "median": statistics.median(values), "min": min(values),
                      "max": max(values), "runs": len(values)}), flush=True)
