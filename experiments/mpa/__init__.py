"""Multi-proxies anchor losses: how many proxies per class."""
