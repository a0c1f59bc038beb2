"""VMs return to their node, with KubeVirt's own virt-controller."""
