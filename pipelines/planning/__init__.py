"""A run's images, network and work, planned from what hospitals say of their studies: nnU-Net's rules in our words."""
