"""One model as a chain of processes over torch.distributed: transport, handshake and steps."""
