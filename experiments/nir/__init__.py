"""Non-isotropy regularization: what a flow around each proxy adds."""
