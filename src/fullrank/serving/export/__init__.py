"""Models exported: a trained run as an ONNX graph, a torch program or vectors for faiss, used without this library.

`make.export_run` is where it begins; a graph is kept only where it answers as the run does.
"""
