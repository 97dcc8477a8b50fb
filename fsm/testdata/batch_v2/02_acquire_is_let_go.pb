€¨Ö¹€€ÌŸÂğÖë"

defaultearlyx