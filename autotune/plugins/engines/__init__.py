"""Engines for models of PyTorch on a CPU: OpenVINO and ONNX Runtime, as they are after installation."""
