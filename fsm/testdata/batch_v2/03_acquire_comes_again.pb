€¼Á–€€ÌŸÂğÖë"

defaultearlyx