"""What tinymcp costs, beside bare references and its peers: python3 -m benchmarks"""
