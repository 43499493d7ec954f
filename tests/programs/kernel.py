"""A Jupyter kernel is started, computes a cell, and is stopped."""

from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="python3")
reply = client.execute_interactive(
    "import pandas; print(pandas.Series(range(10**6)).sum())",
    timeout=60,
    output_hook=lambda message: print(message["content"].get("text", ""), end=""),
)
print(reply["content"]["status"])
client.stop_channels()
manager.shutdown_kernel(now=True)
