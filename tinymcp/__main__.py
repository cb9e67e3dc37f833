from .tinymcp import main

raise SystemExit(main())
