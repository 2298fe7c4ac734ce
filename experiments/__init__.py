"""The paper's tables and figures as data files, and what runs and reports them."""
