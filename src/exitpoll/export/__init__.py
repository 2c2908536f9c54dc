"""From a trained model to ONNX files: graphs, quantization, and the folder that holds them."""
