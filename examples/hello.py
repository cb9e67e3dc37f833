# The smallest server: python3 -m tinymcp run examples/hello.py
from tinymcp import Server

server = Server("hello", version="1.0.0")


@server.tool
def greet(name: str = "world") -> str:
    """Greet somebody by name."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    server.run()
