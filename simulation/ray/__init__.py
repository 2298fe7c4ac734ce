"""What a Ray cluster needs: connecting, checking its nodes, and many runs over them."""
