"""Other people's engines and servers, each in a virtual environment of its own."""
