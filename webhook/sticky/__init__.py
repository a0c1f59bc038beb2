"""The controller that records the nodes of VMs."""
