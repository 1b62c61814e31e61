"""Models exported: a trained run as an ONNX graph, a torch program, or vectors that faiss searches, to be used without
this library. `run.export_run` is where it begins; a graph is written only where it answers as the run does.
"""
